package child

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestPercentile(t *testing.T) {
	var ten []time.Duration
	for i := range 10 {
		ten = append(ten, time.Duration(i+1))
	}
	for _, c := range []struct {
		times []time.Duration
		p     float64
		want  time.Duration
	}{
		{nil, 50, 0},
		{ten[:1], 99, 1},
		{ten, 0, 1},
		{ten, 50, 5},
		{ten, 51, 6},
		{ten, 90, 9},
		{ten, 99, 10},
		{ten, 100, 10},
	} {
		if got := Percentile(c.times, c.p); got != c.want {
			t.Errorf("Percentile(%v, %v) = %v, want %v", c.times, c.p, got, c.want)
		}
	}
}

func TestParseMetrics(t *testing.T) {
	values, series := ParseMetrics([]byte("# HELP go_goroutines n\n# TYPE go_goroutines gauge\ngo_goroutines 317\n" +
		"etcd_mvcc_db_total_size_in_use_in_bytes 1.048576e+06\n\nrequests{code=\"200\",path=\"a b\"} 5\n"))
	want := map[string]float64{"go_goroutines": 317, "etcd_mvcc_db_total_size_in_use_in_bytes": 1 << 20}
	if d := cmp.Diff(want, values); d != "" || series != 3 {
		t.Errorf("%d series, want 3; values (-want +got):\n%s", series, d)
	}
}
