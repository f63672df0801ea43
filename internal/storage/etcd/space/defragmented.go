package space

// DefragmentBelow is the maximum use of the quota, in percent, at which defragmentation frees enough
// space.
const DefragmentBelow = 95

// A Defragmented member has a new database file without free pages.
type Defragmented struct {
	// Member is the URL of a member, or "embedded".
	Member string `json:"member"`
	// Before and After are the sizes of the file in bytes.
	Before int64 `json:"before"`
	After  int64 `json:"after"`
	// Seconds is how long it took. The member has answered no requests in that time.
	Seconds float64 `json:"seconds"`
}
