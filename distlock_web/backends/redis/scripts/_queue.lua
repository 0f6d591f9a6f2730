-- include: _state

-- What happens when a lock becomes free, and who waits for it.

local NUDGED = 4      -- processes that are told of a lease that was shortened

-- From now on a claim may wait for this lock: its release has to look.
local function contend(lock)
  if lock.state == 'held' then
    lock.state = 'contended'
    call('SET', N, text(lock), 'KEEPTTL')
  end
end

-- In how many ms the lease ends that those who wait know of; nil: none waits.
local function known_to_others(lock)
  return lock.state ~= 'held' and call('PTTL', N) or nil
end

-- Where the first waiter of a process stands; nil: none of it waits.
local function place_of(process)
  return call('ZRANGE', QUEUE .. ':' .. process, '0', '0', 'WITHSCORES')[2]
end

local function stand_at(place, process)
  if call('ZADD', QUEUE, place, process) == 1 then
    live_at_least(QUEUE, call('PTTL', QUEUE .. ':' .. process))
  end
end

-- A process stands where its first waiter does. Answers where; nil: none of it waits.
local function set_place(process)
  local place = place_of(process)
  if place then
    stand_at(place, process)
  end
  return place
end

local function leave(process, entry)
  if call('ZREM', QUEUE .. ':' .. process, entry) == 1 and not set_place(process) then
    call('ZREM', QUEUE, process)
  end
end

-- Where a process is told. In a cluster that is a channel for each node, for PUBLISH reaches the subscribers of all: only
-- who listens here is told here, and hears it from here alone.
local node = not string.find(INDEX, '{', 1, true) and ''
local function channel(process)
  node = node or ':' .. call('CLUSTER', 'MYID')
  return 'distlock:wake:' .. process .. node
end

local function listens(process)
  return call('PUBSUB', 'NUMSUB', channel(process))[2] > 0
end

-- The same of a few, in one call: a table of those that listen.
local function listening(processes)
  local channels, found = {}, {}
  for i, process in ipairs(processes) do
    channels[i] = channel(process)
  end
  local counts = call('PUBSUB', 'NUMSUB', unpack(channels))
  for i, process in ipairs(processes) do
    found[process] = counts[2 * i] > 0
  end
  return found
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
  -- A release that hands its place on makes no turn sooner, whatever the limits are: then no line is read.
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

-- The first two processes of the queue. That of the owner who has gone (`lock.aside`) takes part again, by the place of its
-- first waiter: where that is in front it need not come into the queue, which it would leave at once.
local function heads(lock)
  local first, at, second = unpack(call('ZRANGE', QUEUE, '0', '1', 'WITHSCORES'))
  if not (lock and lock.aside) then
    return first, second
  end
  local own, place = unpack(lock.aside)
  lock.aside = nil
  if first == own then
    return first, second
  elseif not first or tonumber(place) < tonumber(at) then
    return own, first
  end
  allow_writes()
  stand_at(place, own)
  return first, own
end

-- The first process, whether another may stand behind it, and whether it has left the queue: one command asks and removes,
-- where no first waiter can be one that has to wait on.
local function next_process(lock, entry)
  if not entry and lock and not lock.shares and not lock.aside then
    local first = call('ZPOPMIN', QUEUE)[1]
    return first, first, true
  end
  return heads(lock)
end

-- The first waiters whose processes listen have the lock from now on, as far as it admits them, each for a whole lease and with
-- a new fence; then they are told. No waiter hears of a grant that was not made: who listens is asked before, and only of this
-- server. `known` is the lock as those who wait know it, or for how long (ms) it is taken; nil: as it is. Answers the lock,
-- free if none listens, and whether any stands in front of `entry`, who asks.
--
-- A process that was handed the lock stands aside with its other waiters until it says something (a release, a question):
-- if it is stopped or cut off, its lease ends, or is revoked, and the next one is not given to it as well. One that shares the
-- lock stands aside when its lease has ended so.
local function hand_over(lock, known, entry)
  local process, more, gone = next_process(lock, entry)
  local together = false
  while process do
    local line = QUEUE .. ':' .. process
    local head = (entry or (lock and lock.shares)) and call('ZRANGE', line, '0', '0')[1]
    local asking = head and head == entry
    -- No subscriber: it died, or is reconnecting. Its line stays for a while: its next waiter that asks restores its place.
    local hears = not asking and listens(process)
    local others = hears and head and not admits(lock, head)
    if asking or others then
      if known and lock and lock.shares then
        nudge(known, lock)
      end
      return lock, others
    end
    local first = hears and call('ZPOPMIN', line)[1]
    if not gone then
      call('ZREM', QUEUE, process) -- and what follows is allowed, as after ZPOPMIN: see allow_writes
    end
    if first then
      local token, expire, holder = string.match(first, '^(%S+) (%d+) (.*)$')
      together = limit_of(token) > 1
      known = known or (lock and lock.shares and not is_free(lock) and lock) or ((more or together) and call('PTTL', N))
      local fence
      if together then
        lock, fence = join_shares(lock, token, expire, 'granted', holder)
        more = set_place(process) or more
      else
        fence = own(lock, token, expire, 'granted', holder)
        lock = {state = 'granted'}
        if known then
          nudge(known, tonumber(expire))
        end
      end
      tell(process, token, format('%d', fence), format('%d', clock()))
      if not together then
        return lock, true
      end
    end
    if not more then
      return lock
    end
    process, more, gone = next_process(lock, entry)
  end
  return lock
end

-- Whether another has the lock from now on, which its owner has released, or was revoked from.
local function pass_on(lock)
  -- To be revoked is no sign of life: the owner's other waiters stand in the queue again only where there is no other.
  if lock.state == 'revoked' and not is_free(hand_over(lock)) then
    return true
  end
  local process = string.sub(lock.token, 1, 16)
  local place = place_of(process)
  lock.aside = place and {process, place}
  return (place or lock.state ~= 'revoked') and not is_free(hand_over(lock))
end

-- The owner has released, or was revoked (`state`): hand the lock on, or leave it free with a tombstone for `ms`.
local function let_go(lock, state, ms)
  local alone = lock.state == 'held' -- else a claim may wait
  lock.state = state
  if alone or not pass_on(lock) then
    forget(lock, ms)
  end
end

-- The same of one that shares it. Those who wait may be too many still, and wait for the others' leases to end.
local function let_go_share(lock, token, state, ms)
  local share, known = lock.shares[token], lock
  lock = put(lock, token)
  if ms > 0 then
    lock = put(lock, token, {ends = clock() + ms * 1000, state = state, fence = share.fence, since = share.since, holder = '-'})
  end
  lock.kept = ms == 0 and known.last -- for how long N lives; a tombstone may have made it anew, without a TTL
  local process = string.sub(token, 1, 16)
  if state ~= 'revoked' then
    set_place(process)
  elseif share.state == 'granted' then -- and never heard of: its process hangs perhaps
    call('ZREM', QUEUE, process)
  end
  lock.leaver = ms == 0 and token or nil
  lock = hand_over(lock, known)
  if lock.shares and lock.last ~= lock.kept then
    keep_shares(lock)
  end
  if is_free(lock) then
    call('ZREM', INDEX, N)
  end
end

-- The owner has released, and the lock stays taken for `ms`, without an owner, and those who wait may have known of more.
local function cool_down(lock, token, ms)
  if lock.shares then
    local known, share = lock, lock.shares[token]
    share.state, share.ends = 'cooldown', clock() + ms * 1000
    lock = put(put(lock, token), token, share)
    keep_shares(lock)
    nudge(known, lock)
    return
  end
  local known = known_to_others(lock)
  lock.state = 'cooldown'
  write(lock, ms)
  list(lock, ms)
  if known then
    set_place(string.sub(token, 1, 16))
    nudge(known, ms)
  end
end

-- A release of one that does not hold the lock: a copy of one that was done, or too late. Answers as a release does.
local function told_late(lock, token, lost)
  -- It may have been handed the lock, so that the others of its process stand aside: now it has said something.
  allow_writes()
  set_place(string.sub(token, 1, 16))
  if is_free(lock) then
    hand_over(lock)
  end
  local share = lock and lock.shares and lock.shares[token]
  if share then
    return share.state == 'revoked' and 3 or 0
  end
  local done = lock and (was_before(lock, token) or (lock.token == token and lock.state ~= 'revoked'))
  return done and 0 or lost
end
