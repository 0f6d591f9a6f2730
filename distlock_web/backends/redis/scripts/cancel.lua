-- Undo an acquisition: leave the queue; what was taken or handed over meanwhile goes on to the next. Or a detachment,
-- whose transit token no process has.
--
-- ARGV     1 token  2 expire (ms)  3 holder: as they were sent with the acquisition; or '' where only the token is known
--          4 tombstone (ms): how long a late copy of the acquisition may arrive and must do nothing, or '0'
--          5 a fence: only the grant that has it, and that was not asked for since; or '0'
-- Answers  0

-- include: _ending

local token = ARGV[1]
leave(string.sub(token, 1, 16), token .. ' ' .. ARGV[2] .. ' ' .. ARGV[3])
local lock = read()
local share = lock and lock.shares and lock.shares[token]
if share and holds(share) and (ARGV[5] == '0' or (share.state == 'granted' and share.fence == tonumber(ARGV[5]))) then
  let_go_share(lock, token, 'released', tonumber(ARGV[4]))
elseif lock and lock.shares then
  hand_over(lock) -- those behind it may fit beside the holders
end
local undone = lock and lock.token == token and (holds(lock) or lock.state == 'transit')
if undone and (ARGV[5] == '0' or (lock.state == 'granted' and lock.fence == tonumber(ARGV[5]))) then
  let_go(lock, 'released', tonumber(ARGV[4]))
end
return 0
