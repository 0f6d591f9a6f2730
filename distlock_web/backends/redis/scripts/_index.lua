-- What is written, for how long it lives, and how the index lists it; and the next fence, which is there, too.

-- A full server refuses what may need memory, but nothing more once the script has written. So what gives something back, or
-- keeps it, begins with this: with the command for what has to be removed anyway, or with one that changes nothing.
local function allow_writes(...)
  if ... then
    return call(...)
  end
  call('ZREM', QUEUE, '-')
end

-- The index outlives its last use by half a day at least, and all that it lists: so much more than that it has to live, for
-- this is asked once in a quarter of a day.
local function keep_index(ms)
  if call('PTTL', INDEX) < ms + 64800000 then
    call('PEXPIRE', INDEX, format('%d', ms + 86400000))
  end
end

-- For those who look: the lease ends in `ms`. An index that is new, for it was evicted, has no TTL; else it has had that when
-- the lock was taken, and again in a quarter of a day.
local function list(lock, ms)
  local added = call('ZADD', INDEX, format('%d', clock() + ms * 1000), N)
  if added == 1 or tonumber(ms) > 60000 or clock() - lock.since > QUARTER then
    keep_index(ms)
  end
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

local highest -- of all fences until now, where this script knows it

-- The next fence, of a lease of `ms`: the time, or more than every fence before.
local function next_fence(now, ms)
  local floor = highest or -(call('ZSCORE', INDEX, FENCES) or 0)
  local fence = math.max(now, floor + 1)
  highest = fence
  -- By the fence: where the clock was set back, the mark must not move again without the floor. See acquire.lua.
  local quarter = format('-%d', fence / QUARTER)
  local ends = format('%d', now + ms * 1000)
  local changed = call('ZADD', INDEX, 'CH', format('-%d', fence), FENCES, ends, N, quarter, MARK, quarter, DOUBLE)
  -- Where the clock was set back, the floor is known until it has come there again.
  local needed = math.max(tonumber(ms), (fence - now) / 1000)
  if changed > 2 or needed > 60000 then -- the mark is one of them; or it has to last for long
    keep_index(needed)
  end
  return fence
end
