-- Take the lock if it is free and nobody waits; else join the queue, once, if asked to. The only script that takes.
-- Also says whether a lock was handed over meanwhile: then it is the caller's already.
--
-- ARGV     1 token  2 expire (ms)  3 '1' join the queue, '0' do not  4 holder, for people
--          5 place: where this token stood before, or ''
-- Answers  {1, fence}                          ours
--          {0, pause, remaining, place, now}   somebody else's: asking again before `pause` ms cannot help

local token, expire, join, holder, place = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4], ARGV[5]
local now = clock()

local owner = call('HGET', N, 'owner')
local last, released
if not owner then
  last, released = unpack(call('HMGET', FENCE, 'last', 'released'))
  if released == token then
    return {0, TURN, TURN, 0, now} -- a copy of this that was lost on the way, after its owner gave the lock back
  end
  local found = call('EXISTS', QUEUE, N)
  if found > 0 and call('EXISTS', N) == 1 then
    return redis.error_reply('WRONGTYPE a hash without an owner')
  end
  if found == 0 then
    local fence = fence_after(last, now)
    own(now, last, fence, token, expire, holder)
    return {1, tonumber(fence)}
  end
end

-- include: _queue

if owner == token then
  live_at_least(N, expire)
  list(now, expire)
  return {1, tonumber(call('HGET', N, 'fence'))}
end

-- A dead holder's release never comes: whoever finds the lock free hands it to the head.
if not owner and not hand_over(now, token) then
  local fence = fence_after(last, now)
  leave_queue(token)
  own(now, last, fence, token, expire, holder)
  return {1, tonumber(fence)}
end

local remaining = call('PTTL', N)
remaining = remaining == -1 and TURN or math.max(remaining, 1) -- -1: somebody made it persist
if join == '0' then
  return {0, remaining, remaining, 0, now}
end
drop_late(now)
place = tonumber(place) or now
if call('ZADD', QUEUE, 'NX', text(place), token) == 0 then
  place = tonumber(call('ZSCORE', QUEUE, token)) -- sent again: the place it has, not a later one
end
-- The head sleeps as long as the lease, each behind it a turn more: an expiry wakes one, not all. At most a lease more,
-- for those ahead may be dead.
local pause = remaining + math.min(call('ZRANK', QUEUE, token) * TURN, expire)
local patience = pause + 2 * TURN
call('ZADD', WAITS, math.floor(now / 1000) + patience, token)
call('HSET', CLAIMS, token, ARGV[2] .. ' ' .. holder)
if call('PTTL', QUEUE) < patience then -- the three come and go together; a minute more, not to do this every time
  for _, key in ipairs({QUEUE, WAITS, CLAIMS}) do
    call('PEXPIRE', key, patience + 60000)
  end
end
return {0, pause, remaining, place, now}
