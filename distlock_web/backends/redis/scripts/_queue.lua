-- What happens when a lock becomes free, and who waits for it.

local GRACE = 15000   -- ms that a line outlives the next question of its waiters
local TOMBSTONE = 5000   -- ms that a free lock keeps the token of its last owner
local NUDGED = 4      -- processes that are told of a lease that was shortened

-- The index outlives its last use by half a day at least, and all that it lists.
local function keep_index(ms)
  if call('PTTL', INDEX) < ms + 43200000 then
    call('PEXPIRE', INDEX, format('%d', ms + 86400000))
  end
end

-- For those who look: the lease ends in `ms`.
local function list(ms)
  call('ZADD', INDEX, format('%d', clock() + ms * 1000), N)
  keep_index(ms)
end

-- Answers for how long (ms) it lives now. `left`: what its PTTL has just been.
local function live_at_least(key, ms, left)
  left = left or call('PTTL', key)
  if left >= tonumber(ms) then
    return left
  end
  call('PEXPIRE', key, format('%d', ms))
  return ms
end

-- The next fence, of a lease of `ms`: the time, or more than every fence before.
local function next_fence(now, ms)
  local fence = math.max(now, 1 - tonumber(call('ZSCORE', INDEX, FENCES) or 0))
  -- By the fence: where the clock was set back, the mark must not move again without the floor. See acquire.lua.
  local quarter = format('-%d', fence / QUARTER)
  local added = call('ZADD', INDEX, format('-%d', fence), FENCES, format('%d', now + ms * 1000), N, quarter, MARK, quarter, DOUBLE)
  if added == 4 or tonumber(ms) > 60000 or fence > now then -- it is new; or has to last for long
    -- Where the clock was set back, the floor is known until it has come there again.
    keep_index(math.max(tonumber(ms), (fence - now) / 1000))
  end
  return fence
end

-- include: _sharing

-- What is in N is none of ours: of a newer version, which says its format in front (see core/formats.py), or of a stranger.
local function refuse(value)
  for _, text in ipairs(type(value) == 'string' and {value} or redis.pcall('HKEYS', N)) do
    local newer = string.match(text, '^distlock/(%d+)')
    if newer then
      error(format('-FORMAT %d %s', newer, N))
    end
  end
  call('ZREM', INDEX, N)
  error('-WRONGTYPE a key that is not a lock')
end

-- N as a table, of the value that is `known` or of a new look; nil: there is no such key. A key of somebody else's is an
-- error, and is not listed.
local function read(known)
  local value = known or redis.pcall('GET', N)
  if not value then
    return nil
  end
  local lock = type(value) ~= 'string' and read_shares() or {}
  if type(value) == 'string' then
    lock.token, lock.state, lock.fence, lock.since, lock.before, lock.holder =
      string.match(value, '^(%S+) (%l+) (%d+) (%d+) (%S+) (.*)$')
  end
  if not lock.token then
    refuse(value)
  end
  lock.fence = tonumber(lock.fence)
  if lock.state == 'done' then
    lock.holder, lock.record = string.match(lock.holder, '^(.*)\n(.*)$')
  end
  return lock
end

local function holds(lock)
  return lock.state == 'held' or lock.state == 'contended' or lock.state == 'granted'
end

local function text(lock)
  return format('%s %s %d %s %s %s', lock.token, lock.state, lock.fence, lock.since, lock.before, lock.holder)
end

-- The lock with another token, state or holder, for `ms`. Its fence is kept. Never without a TTL: no time at all is one
-- millisecond, and SET says it itself, for PEXPIRE may have deleted the key.
local function write(lock, ms)
  local ttl = format('%d', math.max(1, ms))
  call('PEXPIRE', N, ttl) -- a write that a full server allows: the next one is allowed after it
  call('SET', N, text(lock), 'PX', ttl)
end

-- From now on somebody may wait for this lock: its release has to look.
local function contend(lock)
  if lock.state == 'held' then
    lock.state = 'contended'
    call('SET', N, text(lock), 'KEEPTTL')
  end
end

-- Free from now on. For `ms` a tombstone keeps the last owner's token; 0: without one.
local function forget(lock, state, ms)
  if ms > 0 then
    lock.state = state
    write(lock, ms)
  else
    call('DEL', N)
  end
end

-- Who had it until now, as the next one's `before`: one, or several with a comma between them.
local function as_before(lock)
  local before = {}
  for token, each in pairs(lock.shares or {[lock.token] = lock}) do
    if is_free(each) then
      before[#before + 1] = (each.state == 'revoked' and '!' or '') .. token
    end
  end
  return before[1] and table.concat(before, ',') or '-'
end

local function was_before(lock, token)
  return string.find(',' .. lock.before .. ',', ',' .. token .. ',', 1, true)
end

-- The lock becomes this token's for `ms`. Answers its fence.
local function own(now, token, ms, state, before, holder)
  local fence = next_fence(now, ms)
  call('SET', N, format('%s %s %d %d %s %s', token, state, fence, now, before, holder), 'PX', ms)
  return fence
end

-- Why this token does not hold the lock: 0 it does, 1 expired, 2 taken by another, 3 revoked by force.
local function loss(lock, token)
  if not lock then
    return 1
  elseif lock.shares then
    local share = lock.shares[token]
    return share and (holds(share) and 0 or share.state == 'revoked' and 3 or 1) or (admits(lock, token) and 1 or 2)
  elseif lock.token == token then
    return holds(lock) and 0 or lock.state == 'revoked' and 3 or 1
  elseif was_before(lock, '!' .. token) then
    return 3
  end
  return (lock.state == 'released' or lock.state == 'revoked') and 1 or 2
end

-- A process stands where its first waiter does; nil: nobody of it waits. `had_lock`: it stood aside while it had the lock.
local function set_place(process, had_lock)
  local line = QUEUE .. ':' .. process
  local first = call('ZRANGE', line, '0', '0', 'WITHSCORES')
  if first[1] then
    if had_lock then
      call('ZREM', INDEX, N) -- a write that a full server allows: the next one is allowed after it
    end
    if call('ZADD', QUEUE, first[2], process) == 1 then
      live_at_least(QUEUE, call('PTTL', line))
    end
  end
  return first[1]
end

local function leave(process, entry)
  if call('ZREM', QUEUE .. ':' .. process, entry) == 1 and not set_place(process) then
    call('ZREM', QUEUE, process)
  end
end

-- Where a process is told. In a cluster that is a channel for each node, for PUBLISH reaches the subscribers of all: only
-- who listens here is told here, and hears it from here alone.
local function channel(process)
  local name = 'distlock:wake:' .. process
  return string.find(INDEX, '{', 1, true) and name .. ':' .. call('CLUSTER', 'MYID') or name
end

local function listens(process)
  return call('PUBSUB', 'NUMSUB', channel(process))[2] > 0
end

-- A message to one waiter: "token fence at name" of a grant, '-' for both numbers where it shall ask. One that is lost
-- costs a lease at most, so a failure is not ours to raise.
local function tell(process, token, fence, at)
  redis.pcall('PUBLISH', channel(process), token .. ' ' .. fence .. ' ' .. at .. ' ' .. N)
end

-- Who waits may enter sooner than it knows: the first processes that hear of it ask again. `known` and `lock`: the lock as
-- they know it, and as it is; or in how many ms its lease ends.
local function nudge(known, lock)
  if tonumber(known) and known <= (tonumber(lock) or 0) + 50 then
    return
  end
  local processes, told = call('ZRANGE', QUEUE, '0', '31'), 0
  local now = processes[1] and (type(known) == 'table' or type(lock) == 'table') and clock()
  local function is_sooner(limit)
    return free_in(known, limit, now) > free_in(lock, limit, now) + 50
  end
  -- A release that hands its place on makes nobody's turn sooner, whatever the limits are: then no line is read.
  local limit, highest = 1, math.max(tonumber(known) and 1 or known.count, tonumber(lock) and 1 or lock.count) + 1
  while processes[1] and limit <= highest and not is_sooner(limit) do
    limit = limit + 1
  end
  for i = 1, limit <= highest and #processes or 0 do
    local first = call('ZRANGE', QUEUE .. ':' .. processes[i], '0', '0')[1]
    local token = first and string.match(first, '^%S+')
    if first and told < NUDGED and is_sooner(limit_of(token)) and listens(processes[i]) then
      tell(processes[i], token, '-', '-')
      told = told + 1
    end
  end
end

-- The first waiters whose processes listen have the lock from now on, as far as it admits them, each for a whole lease and with
-- a new fence; then they are told. Nobody hears of a grant that was not made: who listens is asked before, and only of this
-- server. `known` is the lock as those who wait know it, or for how long (ms) it is taken; nil: as it is; `now`, nil: the
-- clock says. Answers the lock, free if nobody listens, and whether anybody stands in front of `entry`, who asks.
--
-- A process that was handed the lock stands aside with its other waiters until it says something (a release, a question):
-- if it is stopped or cut off, its lease ends, or is revoked, and the next one is not given to it as well. One that shares the
-- lock stands aside when its lease has ended so.
local function hand_over(lock, now, before, known, entry)
  local together = false
  while true do
    local process, more = unpack(call('ZRANGE', QUEUE, '0', '1'))
    local line = process and QUEUE .. ':' .. process
    local head = process and (entry or (lock and lock.shares)) and call('ZRANGE', line, '0', '0')[1]
    local asking = head and head == entry
    -- No subscriber: it died, or is reconnecting. Its line stays for a while: its next waiter that asks restores its place.
    local hears = process and not asking and listens(process)
    local others = hears and head and not admits(lock, head)
    if not process or asking or others then
      if known and lock and lock.shares then
        nudge(known, lock)
      end
      return lock, others
    end
    local first = hears and call('ZPOPMIN', line)[1]
    call('ZREM', QUEUE, process) -- a write that a full server allows: what follows is allowed after it
    if first then
      local token, expire, holder = string.match(first, '^(%S+) (%d+) (.*)$')
      now, together = now or clock(), limit_of(token) > 1
      known = known or (lock and lock.shares and not is_free(lock) and lock) or ((more or together) and call('PTTL', N))
      local fence
      if together then
        lock, fence = join_shares(lock, now, token, expire, 'granted', holder)
        set_place(process)
      else
        lock, fence = {state = 'granted'}, own(now, token, expire, 'granted', before, holder)
        if known then
          nudge(known, tonumber(expire))
        end
      end
      tell(process, token, format('%d', fence), format('%d', now))
      if not together then
        return lock, true
      end
    end
  end
end

-- The owner has released, or was revoked (`state`): hand the lock on, or leave it free with a tombstone for `ms`.
local function let_go(lock, state, ms)
  lock.state = state
  local before = as_before(lock)
  -- To be revoked is no sign of life: the owner's other waiters stand in the queue again only where there is nobody else.
  if state == 'revoked' and not is_free(hand_over(lock, nil, before)) then
    return
  end
  set_place(string.sub(lock.token, 1, 16), true)
  if is_free(hand_over(lock, nil, before)) then
    call('ZREM', INDEX, N) -- a lock that was handed over stays listed; and a write that a full server allows
    forget(lock, state, ms)
  end
end

-- The same of one that shares it. Those who wait may be too many still, and wait for the others' leases to end.
local function let_go_share(lock, token, state, ms)
  local share, known = lock.shares[token], lock
  lock = put(lock, token)
  if ms > 0 then
    lock = put(lock, token, {ends = clock() + ms * 1000, state = state, fence = share.fence, since = share.since, holder = '-'})
  end
  keep_shares(lock)
  if state ~= 'revoked' then
    set_place(string.sub(token, 1, 16))
  elseif share.state == 'granted' then -- and never heard of: its process hangs perhaps
    call('ZREM', QUEUE, string.sub(token, 1, 16))
  end
  local before = as_before(lock)
  if ms == 0 then -- it leaves no tombstone that tells of it
    before = before == '-' and token or before .. ',' .. token
  end
  lock = hand_over(lock, nil, before, known)
  if is_free(lock) then
    call('ZREM', INDEX, N)
  end
end
