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
    if not gone then -- else ZPOPMIN has allowed what follows
      allow_writes('ZREM', QUEUE, process)
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
