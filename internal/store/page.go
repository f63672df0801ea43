package store

// A page of a range is small enough to be held, and large enough that there are few:
// for each of them etcd counts all the keys that are left in the range.
const (
	leastPage = 100
	mostPage  = 50_000
)

// nextPage returns how many keys to read next of a range of which a page of limit keys
// had that many bytes, for pages of about want bytes.
func nextPage(limit, bytes, want int64) int64 {
	each := max(1, bytes/limit)
	return min(max(leastPage, want/each), mostPage, 4*limit)
}
