package etcd

// A range is read in pages. A page must fit into memory, but there should be few: for each
// page etcd counts all remaining keys of the range.
const (
	// FirstPage is the number of keys of the first page. Each value may be as large as the
	// maximum request.
	FirstPage = 16

	minPage = 10
	maxPage = 50_000
)

// NextPage returns the number of keys of the next page of a range. The last page had limit
// keys and the given bytes; the next one should have want bytes.
func NextPage(limit, bytes, want int64) int64 {
	each := max(1, bytes/limit)
	return min(max(minPage, want/each), maxPage, 4*limit)
}
