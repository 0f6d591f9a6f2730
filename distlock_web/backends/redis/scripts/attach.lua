-- Exchange a transit token for the receiver's own.
--
-- ARGV     1 transit token  2 token  3 expire (ms)  4 holder
-- Answers  the fence, also to a second copy of this; 0 unknown, used by another, or too late

-- include: _queue

local owner = call('HGET', N, 'owner')
if owner ~= ARGV[1] and owner ~= ARGV[2] then
  return 0
end
call('HSET', N, 'owner', ARGV[2], 'state', 'held', 'holder', ARGV[4])
call('PEXPIRE', N, ARGV[3])
list(clock(), tonumber(ARGV[3]))
tell_head()
return tonumber(call('HGET', N, 'fence'))
