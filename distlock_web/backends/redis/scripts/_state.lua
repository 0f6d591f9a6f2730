-- What a lock is: read, written, listed, and whose.

local TOMBSTONE = 5000   -- ms that a free lock keeps the token of its last owner

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

-- N as a table, of the value that is `known` or of a new look; nil: there is no such key. A key of another program's is an
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

-- The lock with another token, state or holder, for `ms`, where the script has written. Its fence is kept. Never without a
-- TTL: no time at all is one millisecond.
local function rewrite(lock, ms)
  call('SET', N, text(lock), 'PX', format('%d', math.max(1, ms)))
end

local function write(lock, ms)
  allow_writes()
  rewrite(lock, ms)
end

-- Free from now on. For `ms` a tombstone keeps the last owner's token; 0: without one.
local function forget(lock, ms)
  allow_writes('ZREM', INDEX, N)
  if ms > 0 then
    rewrite(lock, ms)
  else
    call('DEL', N)
  end
end

-- Who had it until now, as the next one's `before`: one, or several with a comma between them. `lock.leaver` has just
-- left a lock that others share, and no tombstone.
local function as_before(lock)
  local before = {lock and lock.leaver}
  for token, each in pairs(lock and (lock.shares or {[lock.token] = lock}) or {}) do
    if is_free(each) then
      before[#before + 1] = (each.state == 'revoked' and '!' or '') .. token
    end
  end
  return before[1] and table.concat(before, ',') or '-'
end

local function was_before(lock, token)
  return string.find(',' .. lock.before .. ',', ',' .. token .. ',', 1, true)
end

-- The lock, which is free, becomes this token's for `ms`. Answers its fence.
local function own(lock, token, ms, state, holder)
  local now = clock()
  local fence = next_fence(now, ms)
  call('SET', N, format('%s %s %d %d %s %s', token, state, fence, now, as_before(lock), holder), 'PX', ms)
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
