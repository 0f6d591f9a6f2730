-- include: _admission

-- A lock that several hold together. N is a hash then, so that SET NX finds it taken, with a field for each of them:
--
--   <token>   "until state fence since holder"; until: the µs at which its lease ends
--
-- States as in _lock.lua: held, granted and cooldown; released and revoked, tombstones, which hold nothing.

-- The µs until which a share is known. One that was handed over is, for a while after its end: whether it was ever heard of
-- is asked then.
local function known_until(share)
  return share.ends + (share.state == 'granted' and TOMBSTONE * 1000 or 0)
end

-- One share more: of how many hold the lock and may, the µs at which their leases end, and which of them ends first; and of
-- the µs until which the last of them is known.
local function count_in(lock, token, share)
  lock.shares[token] = share
  lock.last = math.max(lock.last, known_until(share))
  if share.state ~= 'released' and share.state ~= 'revoked' then
    if lock.count == 0 or share.ends < lock.first then
      lock.first, lock.since, lock.holder = share.ends, share.since, share.holder
    end
    lock.state, lock.count, lock.limit = 'shared', lock.count + 1, math.min(lock.limit, limit_of(token))
    lock.ends[lock.count], lock.sorted = share.ends, false
  end
end

local function shared(shares)
  local lock = {token = '-', state = 'released', before = '-', holder = '', since = 0, fence = 0}
  lock.shares, lock.count, lock.limit, lock.ends, lock.last = {}, 0, math.huge, {}, 0
  for token, share in pairs(shares) do
    count_in(lock, token, share)
  end
  return lock
end

-- N, where it is a hash, without those whose lease has ended; nil: it is no lock.
local function read_shares()
  local fields, now, shares = redis.pcall('HGETALL', N), clock(), {}
  for i = 1, #fields, 2 do
    local token, ends, state, fence, since, holder =
      fields[i], string.match(fields[i + 1], '^(%d+) (%l+) (%d+) (%d+) (.*)$')
    if not ends then
      return nil
    elseif tonumber(ends) > now then
      shares[token] = {ends = tonumber(ends), state = state, fence = tonumber(fence), since = since, holder = holder}
    else
      call('HDEL', N, token)
      if state == 'granted' then -- and never heard of: its process hangs perhaps, and stands aside until it says something
        call('ZREM', QUEUE, string.sub(token, 1, 16))
      end
    end
  end
  return not fields.err and shared(shares) or nil
end

-- One of the shares as it is from now on; without `share` it is none any more. Answers the lock. A share that is new is
-- counted beside the others, for a thousand readers may enter in one script.
local function put(lock, token, share)
  if share then
    call('HSET', N, token, format('%d %s %d %s %s', share.ends, share.state, share.fence, share.since, share.holder))
  else
    allow_writes('HDEL', N, token)
  end
  if lock.shares[token] then
    lock.shares[token] = share
    lock = shared(lock.shares)
  else
    count_in(lock, token, share)
  end
  return lock
end

-- N lives as long as the last of them is known. Answers that, in ms; nil: there are none.
local function live_as_long_as(lock)
  if lock.last > 0 then
    local ms = math.max(1, math.ceil((lock.last - clock()) / 1000))
    call('PEXPIRE', N, format('%d', ms))
    lock.kept = lock.last
    return ms
  end
end

-- The same, and it is listed so.
local function keep_shares(lock)
  local ms = live_as_long_as(lock)
  if ms then
    list(lock, ms)
  end
end

-- The token holds it, too, from now on, for `ms`. Answers the lock and its fence.
local function join_shares(lock, token, ms, state, holder)
  local now = clock()
  if not (lock and lock.shares) then
    local alone = lock
    lock = shared({})
    if alone then -- and has released, or was revoked: its own requests are told so still
      local left = call('PTTL', N)
      call('DEL', N)
      left = alone.state == 'revoked' and math.max(left, TOMBSTONE) or TOMBSTONE
      lock = put(lock, alone.token, {
        ends = now + left * 1000, state = alone.state, fence = alone.fence, since = alone.since, holder = '-',
      })
    end
  end
  local share = {ends = now + ms * 1000, state = state, since = format('%d', now), holder = holder}
  share.fence = next_fence(now, (math.max(lock.last, known_until(share)) - now) / 1000) -- and it is listed so
  lock = put(lock, token, share)
  live_as_long_as(lock)
  return lock, share.fence
end
