package archives

// Followers has, by plane, the planes that follow its journal.
var Followers = followers
