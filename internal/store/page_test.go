package store

import "testing"

// Pages grow while values are small, so that reading a million keys takes a few dozen of
// them, and shrink where values are large.
func TestNextPage(t *testing.T) {
	const want = 32 << 20
	read, pages := int64(0), 0
	for limit := int64(scanPage); read < 1_000_000; pages++ {
		read += limit
		limit = nextPage(limit, limit*700, want)
	}
	if pages > 40 {
		t.Errorf("a million keys are read in %d pages", pages)
	}
	for _, c := range []struct{ limit, bytes, next int64 }{
		{2000, 2000 * 1000, 8000},         // four times as many at most
		{20_000, 20_000 * 1000, 33_554},   // as many as there is room for
		{50_000, 50_000 * 10, mostPage},   // however small they are
		{50_000, 50_000 << 20, leastPage}, // however large
		{100, 0, 400},
	} {
		if got := nextPage(c.limit, c.bytes, want); got != c.next {
			t.Errorf("after %d keys of %d bytes: %d, want %d", c.limit, c.bytes, got, c.next)
		}
	}
}
