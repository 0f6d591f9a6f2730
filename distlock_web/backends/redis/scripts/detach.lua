-- Exchange the owner for a transit token.
--
-- ARGV     1 token  2 transit token  3 its lifetime (ms)
-- Answers  0 done, now or by an earlier copy of this; 1 expired, 2 taken, 3 revoked

-- include: _queue

if call('HGET', N, 'owner') == ARGV[2] then
  return 0
end
local lost = loss(ARGV[1])
if lost == 0 then
  call('HSET', N, 'owner', ARGV[2], 'state', 'transit')
  call('PEXPIRE', N, ARGV[3])
  list(clock(), tonumber(ARGV[3]))
  tell_head()
end
return lost
