package embedded

import "testing"

// opened runs a member until the test ends.
func opened(t testing.TB) *Member {
	t.Helper()
	m, err := Start(t.Context(), Config{Dir: t.TempDir()}, false)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	return m
}
