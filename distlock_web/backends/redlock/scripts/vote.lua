-- Vote for this attempt, if the node has not voted for another.
--
-- ARGV     1 token  2 attempt: more than every one before  3 who asks, as in QUORUM: "self;members;delay"  4 delay (µs)
--          5 expire (ms)  6 the fence to give it, so that all nodes give the same; '' the time  7 µs that this fence may be ahead
--          of the time; '' another node has given it  8 holder, for people  9 '1': it waits, if it does not get it
-- Answers  {fence, now}                            the vote is this attempt's, for `expire` at least
--          {0, now, remaining (ms), token, since (µs), holder}  another's; or a later attempt's of the same token
--          {-1, now} {-2, now, QUORUM} {-3, now, µs}  no vote: a node that may have forgotten some; another quorum's; too young

local token, attempt, who, delay, expire = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
local proposed, ahead = tonumber(ARGV[6]), tonumber(ARGV[7])
local now = clock()
local known, value = unpack(call('MGET', QUORUM, N)) -- of another type than a string is none: see write
local refused = no_vote(now, known, who, delay)
if refused then
  return refused
end

local lock = read(value)
local ours = lock and lock.token == token and lock.state == 'held' and tonumber(attempt) >= tonumber(lock.attempt)
if lock and lock.state ~= 'revoked' and not ours then
  if ARGV[9] == '1' then
    wait(now, token)
  end
  return {0, now, math.max(call('PTTL', N), 1), lock.token, tonumber(lock.since), lock.holder}
end
if ARGV[9] == '1' then
  call('ZREM', WAITING, token)
end

if not proposed or (ahead and proposed > now + ahead) then
  proposed = now
end
local floor, lasts = unpack(call('ZMSCORE', INDEX, FENCES, LASTS))
floor = -(floor or 0)
if ours then
  lock.attempt = attempt
  if not ahead then
    lock.fence = format('%d', proposed) -- agreed on; a node that answered late may have given more
  end
  expire = math.max(expire, call('PTTL', N)) -- never less: it may have been extended since
else
  local before = lock and '!' .. lock.token or '-'
  lock = {token = token, attempt = attempt, state = 'held', before = before, holder = ARGV[8]}
  lock.fence = format('%d', math.max(proposed, floor + 1))
  lock.since = format('%d', now)
end
write(lock, expire, not value)
call('ZADD', INDEX, format('-%d', math.max(floor, lock.fence)), FENCES, format('%d', now + expire * 1000), N)
if -(lasts or 0) < now + (expire + DAY / 2) * 1000 then
  keep_index(expire)
  local ms = math.min(expire + DAY * 3 / 4, 20 * DAY) -- QUORUM, too, is looked at before its month is over
  call('ZADD', INDEX, format('-%d', now + ms * 1000), LASTS)
end
if now % 64 == 0 then -- housekeeping, now and then
  call('ZREMRANGEBYSCORE', INDEX, '0', format('%d', now - 60000000)) -- ended a minute ago
end
return {tonumber(lock.fence), now}
