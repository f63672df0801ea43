package etcd

import (
	"testing"

	"github.com/unforked/kcp/internal/storage/etcd/embedded"
)

// Pages grow while values are small, so that a million keys take only dozens of pages. They
// shrink when values are large.
func TestNextPage(t *testing.T) {
	const want = 32 << 20
	read, pages := int64(0), 0
	for limit := int64(FirstPage); read < 1_000_000; pages++ {
		read += limit
		limit = NextPage(limit, limit*700, want)
	}
	if pages > 40 {
		t.Errorf("a million keys are read in %d pages", pages)
	}
	for _, c := range []struct{ limit, bytes, next int64 }{
		{2000, 2000 * 1000, 8000},       // at most four times as many keys
		{20_000, 20_000 * 1000, 33_554}, // limited by bytes
		{50_000, 50_000 * 10, maxPage},  // the maximum, even for small values
		{50_000, 50_000 << 20, 32},      // few large values
		{20, 20 * embedded.MaxRequestBytes, minPage},
		{100, 0, 400},
	} {
		if got := NextPage(c.limit, c.bytes, want); got != c.next {
			t.Errorf("after %d keys of %d bytes: %d, want %d", c.limit, c.bytes, got, c.next)
		}
	}
}
