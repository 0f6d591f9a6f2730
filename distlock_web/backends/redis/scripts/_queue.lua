-- What happens when a lock becomes free, and who waits for it.

local function leave_queue(token)
  call('ZREM', QUEUE, token)
  call('ZREM', WAITS, token)
  call('HDEL', CLAIMS, token)
end

local function drop_late(now)
  for _, token in ipairs(call('ZRANGEBYSCORE', WAITS, '-inf', math.floor(now / 1000), 'LIMIT', 0, 1000)) do
    leave_queue(token)
  end
end

-- Tell a waiter's process. How many processes heard; refused for lack of rights on the channel, nobody knows: one.
local function tell(token, news)
  local heard = redis.pcall('PUBLISH', 'distlock:wake:' .. string.sub(token, 1, 16), token .. news)
  return type(heard) == 'number' and heard or 1
end

-- A lease that others know of was shortened: the head of the queue sleeps for what it was, so let it ask.
local function tell_head()
  local head = call('ZRANGE', QUEUE, 0, 0)[1]
  if head then
    tell(head, '')
  end
end

-- The lock is free: give it to the first waiter whose process listens, with a whole lease and a new fence, and tell it
-- both with the time. True if that was done; `taker`, who asks now, is not told, and takes it by itself when it is first.
local function hand_over(now, taker, released)
  -- A write that changes nothing. A server that accepts none (a demoted master, too few replicas) says so here, and
  -- not between the good news and what makes it true.
  call('HDEL', CLAIMS, '')
  drop_late(now)
  local last = call('HGET', FENCE, 'last')
  local fence = fence_after(last, now)
  local place = 0
  while true do
    local token = call('ZRANGE', QUEUE, place, place)[1]
    if token == nil or token == taker then
      return false
    end
    local expire, holder = string.match(call('HGET', CLAIMS, token) or '', '^(%d+) (.*)$')
    if not expire then
      tell(token, '') -- what it asks for is lost (an eviction): let it ask again
      return false
    end
    -- Nobody listening: it died, or is reconnecting. It keeps its place; only its deadline or itself removes it.
    if tell(token, ' ' .. fence .. ' ' .. text(now)) > 0 then
      leave_queue(token)
      own(now, last, fence, token, tonumber(expire), holder, released)
      return true
    end
    place = place + 1
  end
end

-- The owner has gone: hand the lock on, or wipe it.
local function let_go(token)
  if call('EXISTS', QUEUE) == 0 or not hand_over(clock(), nil, token) then
    forget(token)
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
