-- Put in front of every script on one lock: its keys, the clock, and what happens when a lock becomes free.
--
-- KEYS  1 N           hash: owner, fence, state (held, pending, kept, transit), holder, since; its PTTL is the lease
--       2 {N}:queue   sorted set of waiting tokens by place (the µs at which they came)
--       3 {N}:waits   sorted set of the same tokens by deadline (ms): whoever is past it has gone
--       4 {N}:fence   hash: last fence, last released token, last revoked token
--       5 index       sorted set of held names by the ms at which they expire; '' where there is none
-- A token's first 16 characters name its process; a process listens on distlock:wake:<those>.
-- A redis.call costs more than the command it runs: the free path makes as few as it can.

local N, QUEUE, WAITS, FENCE, INDEX = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local WINDOW = 1000        -- ms to confirm a lock that was handed over, before it goes to the next
local REMEMBER = 3600000   -- ms that the last fence is kept; the clock takes over from there
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

-- The lock becomes this token's, with a new fence: greater than the last one, and than all that were forgotten.
local function own(now, last, token, state, ms, holder)
  local fence = text(math.max((tonumber(last) or 0) + 1, now))
  call('HSET', FENCE, 'last', fence)
  call('PEXPIRE', FENCE, REMEMBER)
  call('HSET', N, 'owner', token, 'state', state, 'fence', fence, 'since', text(now), 'holder', holder)
  call('PEXPIRE', N, ms)
  list(now, ms)
  return tonumber(fence)
end

local function leave_queue(token)
  call('ZREM', QUEUE, token)
  call('ZREM', WAITS, token)
end

local function drop_late(now)
  for _, token in ipairs(call('ZRANGEBYSCORE', WAITS, '-inf', math.floor(now / 1000), 'LIMIT', 0, 1000)) do
    leave_queue(token)
  end
end

-- The lock is free: hand it to the first waiter whose process listens. True if `taker`, who asks now, is to have it.
local function hand_over(now, taker)
  drop_late(now)
  local place = 0
  while true do
    local token = call('ZRANGE', QUEUE, place, place)[1]
    if token == nil or token == taker then
      return taker ~= nil
    end
    -- Nobody listening: it died, or is reconnecting. It keeps its place; only its deadline or itself removes it.
    -- (Refused for lack of rights on the channel: nobody knows, so it has the window to ask by itself.)
    local heard = redis.pcall('PUBLISH', 'distlock:wake:' .. string.sub(token, 1, 16), token)
    if type(heard) == 'table' or heard > 0 then
      leave_queue(token)
      own(now, call('HGET', FENCE, 'last'), token, 'pending', WINDOW, '')
      return false
    end
    place = place + 1
  end
end

-- The owner has gone: wipe the lock and hand it on.
local function let_go(token)
  call('DEL', N)
  if call('HSET', FENCE, 'released', token) == 1 then
    live_at_least(FENCE, REMEMBER)
  end
  if INDEX ~= '' then
    call('ZREM', INDEX, N)
  end
  if call('EXISTS', QUEUE) == 1 then
    hand_over(clock(), nil)
  end
end

-- Why this token does not own the lock: 0 it does, 1 expired, 2 taken by another, 3 revoked by force.
local function loss(token)
  local owner = call('HGET', N, 'owner')
  if owner == token then
    return 0
  end
  if call('HGET', FENCE, 'revoked') == token then
    return 3
  end
  return owner and 2 or 1
end
