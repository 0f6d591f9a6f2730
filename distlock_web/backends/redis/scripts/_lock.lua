-- Put in front of every script on one lock: its keys, the clock, and how it becomes somebody's.
--
-- KEYS  1 N           hash: owner, fence, state (held, kept, transit), holder, since; its PTTL is the lease
--       2 {N}:queue   sorted set of waiting tokens by place (the µs at which they came)
--       3 {N}:waits   sorted set of the same tokens by deadline (ms): whoever is past it has gone
--       4 {N}:claims  hash of the same tokens: what each asks for, as "expire holder"
--       5 {N}:fence   hash: last fence, last released token, last revoked token
--       6 index       sorted set of held names by the ms at which they expire; '' where there is none
-- A token's first 16 characters name its process; a process listens on distlock:wake:<those>.
-- A redis.call costs more than the command it runs, and a function that is defined costs, too: the way of a free lock
-- makes few calls, and comes before the functions that it does not need (`-- include: _queue`).

local N, QUEUE, WAITS, CLAIMS, FENCE, INDEX = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local TURN = 1000          -- ms that the head of the queue has to notice an expiry, before the next one looks
local REMEMBER = 4200000   -- ms that the last fence is kept, 70 minutes; the clock takes over from there
local REFRESH = 600000000  -- µs: that lifetime is renewed in every ten minutes of use, so an hour is sure
local call = redis.call

local function clock() -- µs; exact, for a double holds whole numbers up to 2^53
  local time = call('TIME')
  return time[1] * 1000000 + time[2]
end

local function text(number)
  return string.format('%.0f', number) -- tostring() would turn a fence into 1.7951585471487e+15
end

local function live_at_least(key, ms)
  if call('PTTL', key) < ms then
    call('PEXPIRE', key, ms)
  end
end

-- The lease of this lock ends in `ms`: what the admin page and the purge of the index go by.
local function list(now, ms)
  if INDEX ~= '' then
    call('ZADD', INDEX, math.floor(now / 1000) + ms, N)
    live_at_least(INDEX, ms)
    if now % 64 == 0 then
      call('ZREMRANGEBYSCORE', INDEX, '-inf', math.floor(now / 1000))
    end
  end
end

-- The next fence: greater than the last one, and than all that were forgotten.
local function fence_after(last, now)
  return text(math.max((tonumber(last) or 0) + 1, now))
end

-- The lock becomes this token's, with this fence; `released` is whose it was until now, if that one gave it back.
local function own(now, last, fence, token, ms, holder, released)
  if released then
    call('HSET', FENCE, 'last', fence, 'released', released)
  else
    call('HSET', FENCE, 'last', fence)
  end
  if math.floor((tonumber(last) or 0) / REFRESH) ~= math.floor(now / REFRESH) then
    call('PEXPIRE', FENCE, REMEMBER)
  end
  -- Every field, so that none of the last holder's is left.
  call('HSET', N, 'owner', token, 'state', 'held', 'fence', fence, 'since', text(now), 'holder', holder)
  call('PEXPIRE', N, ms)
  list(now, ms)
end

-- Nobody's any more. Who gave it back is remembered, for a second copy of the release.
local function forget(token)
  call('DEL', N)
  if call('HSET', FENCE, 'released', token) == 1 then
    live_at_least(FENCE, REMEMBER)
  end
  if INDEX ~= '' then
    call('ZREM', INDEX, N)
  end
end
