-- What a lock is: read, written, and whose.

local TOMBSTONE = 5000   -- ms that a free lock keeps the token of its last owner

-- include: _index
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
