-- Who may join the queue, and where it stands then.

local GRACE = 15000   -- ms that a line outlives the next question of its waiters
local SPARE = 3000    -- ms that a key of the queue is given beyond that, so that the next to come need not give it more
local SAMPLE = 8      -- one in so many of those who come behind others looks for the dead

-- A process that does not listen has most likely died: it would stand in the queue until the lock is handed over, and each
-- question would go through it. As there, its line stays: its next waiter that asks restores its place.
local function drop(process)
  call('ZREM', QUEUE, process)
end

-- Whether `most` others wait. Those of processes that no longer listen do not count: most likely they have died, and
-- a claim that is refused for their sake would never have its turn. Nor is a claim refused the place that it has.
local function is_full(lock, process, entry, place, most)
  local line = QUEUE .. ':' .. process
  if tonumber(place) or call('ZSCORE', line, entry) then
    return false
  end
  local count, seen = call('ZCARD', line), {[process] = true}
  local processes = call('ZRANGE', QUEUE, '0', '-1')
  if not lock.shares then
    table.insert(processes, string.sub(lock.token, 1, 16)) -- it stands aside: see hand_over
  end
  for _, other in ipairs(processes) do
    if count < most and not seen[other] then
      if listens(other) then
        count = count + call('ZCARD', QUEUE .. ':' .. other)
      else
        drop(other)
      end
    end
    seen[other] = true
  end
  return count >= most
end

local function outlive(key, ms, left)
  if left < ms then
    call('PEXPIRE', key, format('%d', ms + SPARE))
  end
end

-- The entry stands in the line of its process, at `place` unless it has one. It may sleep for `recheck` ms as far as the
-- lock is concerned. Answers for how long it may as far as the queue is, its place, and whether its process listens.
local function join_queue(process, entry, place, recheck)
  local line = QUEUE .. ':' .. process
  if call('ZADD', line, 'NX', format('%d', place), entry) == 0 then
    place = tonumber(call('ZSCORE', line, entry)) -- sent again: the place it has, not a later one
  end
  -- A key that was just made has no TTL: then no other is in it.
  local line_left = call('PTTL', line)
  local behind = line_left < 0 and 0 or call('ZRANK', line, entry)
  local ahead = behind > 0 and call('ZRANK', QUEUE, process)
  local comes = not ahead -- a process stands where its first waiter does; it may have stood aside
    and call('ZADD', QUEUE, behind == 0 and format('%d', place) or place_of(process), process) == 1
  local queue_left = call('PTTL', QUEUE)
  ahead = ahead or (queue_left < 0 and 0 or call('ZRANK', QUEUE, process))
  -- Asleep until the lease ends, but not for longer than one of its own: then nothing that happens to the holder, to a
  -- message or to those in front costs more than that. Each place adds a millisecond, so that an expiry wakes one, not all.
  recheck = recheck + math.min(ahead + behind, 1000)
  outlive(line, recheck + GRACE, line_left)
  -- A process that comes into the queue brings its other waiters, who may sleep for longer.
  outlive(QUEUE, math.max(recheck + GRACE, comes and line_left or 0), queue_left)
  -- So that a third of the processes, at most, has died: one that makes them more comes behind others. Three for each.
  local some = ahead > 0 and now % SAMPLE == 0 and call('ZRANDMEMBER', QUEUE, format('%d', 3 * SAMPLE)) or {}
  table.insert(some, process)
  local heard = listening(some)
  for _, other in ipairs(some) do
    if other ~= process and not heard[other] then
      drop(other)
    end
  end
  return recheck, place, heard[process]
end
