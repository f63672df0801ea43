package control

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/testutil"
)

const counted = `
# HELP kcp_control_adds_total [ALPHA] Number of keys that sources added to the loop's queue, without merged ones.
# TYPE kcp_control_adds_total counter
kcp_control_adds_total{loop="l"} ADDS
# HELP kcp_control_depth [ALPHA] Number of keys that wait for a worker of the loop, over all logical clusters.
# TYPE kcp_control_depth gauge
kcp_control_depth{loop="l"} DEPTH
# HELP kcp_control_retries_total [ALPHA] Number of retries of keys after an error.
# TYPE kcp_control_retries_total counter
kcp_control_retries_total{loop="l"} RETRIES
`

func checkMetrics(t *testing.T, r metrics.KubeRegistry, adds, depth, retries int) {
	t.Helper()
	want := strings.NewReplacer("ADDS", strconv.Itoa(adds), "DEPTH", strconv.Itoa(depth), "RETRIES", strconv.Itoa(retries)).Replace(counted)
	if err := testutil.GatherAndCompare(r, strings.NewReader(want), "kcp_control_adds_total", "kcp_control_depth", "kcp_control_retries_total"); err != nil {
		t.Error(err)
	}
}

func TestMetricsOfTwoServersInOneRegistry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		registry := metrics.NewKubeRegistry()
		ctx, cancel := context.WithCancel(t.Context())
		bells, ended, release := []*bell{readyBell(), readyBell()}, make(chan struct{}), make(chan struct{})
		for _, b := range bells {
			m := NewMetrics()
			for range 2 {
				if err := m.Register(registry.Register); err != nil {
					t.Fatal(err)
				}
			}
			failed := false
			l := Loop{Name: "l", On: []Source{b.source()}, Workers: 1, Do: func(ctx context.Context, k Key) error {
				switch {
				case k.Name == "stuck":
					<-release
				case !failed:
					failed = true
					return errors.New("no")
				}
				return nil
			}}
			go func() { Runner{Metrics: m}.Run(ctx, l); ended <- struct{}{} }()
		}
		synctest.Wait()
		for _, b := range bells {
			for i := range 10 {
				b.ring(key("tenant-"+strconv.Itoa(i), "x"))
			}
		}
		<-time.After(time.Second)
		checkMetrics(t, registry, 20, 0, 2)
		count, err := testutil.GetHistogramVecFromGatherer(registry, "kcp_control_work_duration_seconds", map[string]string{"loop": "l"})
		if err != nil || count.GetAggregatedSampleCount() != 22 || len(count) != 1 {
			t.Errorf("%d runs in %d series, %v; want 22 in 1", count.GetAggregatedSampleCount(), len(count), err)
		}

		bells[0].ring(key("a1", "stuck"))
		synctest.Wait()
		bells[0].ring(key("a1", "stuck"), key("a1", "stuck"), key("a1", "y"), key("b1", "z"))
		bells[1].ring(key("a1", "stuck"), key("a1", "x"))
		synctest.Wait()
		checkMetrics(t, registry, 26, 3, 2)
		wake := bells[0].wakes[0]
		cancel()
		close(release)
		<-ended
		<-ended
		wake(key("a1", "late")) // is not kept
		checkMetrics(t, registry, 26, 0, 2)
	})
}

func TestMetricsAreOffByDefault(t *testing.T) {
	for _, m := range []*Metrics{nil, {}, NewMetrics()} {
		m.added("l")
		m.retried("l")
		m.depth("l", 1)
		m.worked("l", time.Second)
	}
	if err := (&Metrics{}).Register(nil); err != nil {
		t.Error(err)
	}
}

func TestRegisterSaysWhatIsInTheWay(t *testing.T) {
	registry := metrics.NewKubeRegistry()
	other := metrics.NewCounter(&metrics.CounterOpts{Name: "kcp_control_depth", Help: "other"})
	if err := registry.Register(other); err != nil {
		t.Fatal(err)
	}
	if err := NewMetrics().Register(registry.Register); err == nil || !strings.Contains(err.Error(), "kcp_control_depth") {
		t.Errorf("got %v", err)
	}
}
