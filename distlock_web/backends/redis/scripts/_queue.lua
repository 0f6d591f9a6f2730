-- What happens when a lock becomes free, and who waits for it.

local function leave_queue(token)
  call('ZREM', QUEUE, token)
  call('ZREM', WAITS, token)
end

local function drop_late(now)
  for _, token in ipairs(call('ZRANGEBYSCORE', WAITS, '-inf', math.floor(now / 1000), 'LIMIT', 0, 1000)) do
    leave_queue(token)
  end
end

-- How many processes heard that it is this token's turn to ask. (Refused for lack of rights on the channel: nobody
-- knows; the waiter asks by itself before long.)
local function wake(token)
  local heard = redis.pcall('PUBLISH', 'distlock:wake:' .. string.sub(token, 1, 16), token)
  return type(heard) == 'number' and heard or 1
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
    if wake(token) > 0 then
      leave_queue(token)
      own(now, call('HGET', FENCE, 'last'), token, 'pending', WINDOW, '')
      return false
    end
    place = place + 1
  end
end

-- The owner has gone: wipe the lock and hand it on.
local function let_go(token)
  forget(token)
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
