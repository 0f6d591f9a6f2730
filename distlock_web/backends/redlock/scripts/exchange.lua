-- Exchange the token of a vote: for a transit token (detach), or such a one for the receiver's own (attach).
--
-- ARGV     1 who asks, as in QUORUM  2 token  3 its state  4 the new token  5 its attempt  6 its state  7 ms that the vote
--          lives from now on  8 holder, for people; '' as it is
-- Answers  {fence, now}  done, now or by an earlier copy of this; {0, why}: 1 expired, 2 taken, 3 revoked
--          {-1, now} {-2, now, QUORUM}  no vote, as in vote.lua

local token, state, new, ms = ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[7])
local now = clock()
local refused = no_vote(now, ARGV[1])
if refused then
  return refused
end
local lock = read()
if lock and lock.token == new and lock.state == ARGV[6] then
  ms = math.max(ms, call('PTTL', N)) -- never less: it may have been extended since
else
  local lost = loss(lock, token)
  if lost ~= 0 or lock.state ~= state then
    return {0, lost == 0 and 1 or lost}
  end
end
lock.token, lock.attempt, lock.state = new, ARGV[5], ARGV[6]
if ARGV[8] ~= '' then
  lock.holder = ARGV[8]
end
write(lock, ms)
list(now, ms)
return {tonumber(lock.fence), now}
