-- include: _state

-- Who waits, and where.

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
