package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"k8s.io/client-go/rest"

	"github.com/unforked/kcp/test/stock"
)

// subject is a kind of server that is measured. It knows how to start one.
type subject interface {
	name() string
	// start returns a server that answers /readyz. With controllers it can also
	// make tenants.
	start(ctx context.Context, dir string, controllers bool) (*server, error)
}

// tenant is a place of its own for objects: a workspace of kcp, a namespace of
// a stock server.
type tenant struct {
	configMaps string // URL path of the config maps in its (default) namespace
	all        string // URL path that lists the config maps of the whole tenant
}

// server is a running server: the processes that store and serve, which are
// what is measured, and beside them the controller manager if it is a process
// of its own.
type server struct {
	subject string
	dir     string
	took    time.Duration // from exec to ready
	began   time.Time

	measured []*stock.Process // API server and etcd
	beside   []*stock.Process // controller manager
	closers  []func()         // called in reverse order before the processes stop

	user    *rest.Config   // an ordinary user to whom RBAC grants everything
	metrics []*rest.Config // where each measured process shows /metrics

	// newTenant returns when a config map can be written in the tenant.
	newTenant func(ctx context.Context, c *client, name string) (tenant, error)
}

// stop ends every process, those started last first, and waits for them.
func (s *server) stop() {
	for i := range s.closers {
		s.closers[len(s.closers)-1-i]()
	}
	all := append(append([]*stock.Process{}, s.measured...), s.beside...)
	for i := range all {
		all[len(all)-1-i].Stop()
	}
}

// ready waits until the server at the URL is ready, and notes how long it took.
func (s *server) ready(ctx context.Context, url string, p *stock.Process) error {
	err := stock.Ready(ctx, url, p)
	s.took = time.Since(s.began)
	return err
}

func sumCPU(ps []*stock.Process) (time.Duration, error) {
	var sum time.Duration
	for _, p := range ps {
		d, err := p.CPU()
		if err != nil {
			return 0, err
		}
		sum += d
	}
	return sum, nil
}

// footprint is what the measured processes hold.
type footprint struct {
	memory     float64 // anonymous resident bytes
	liveHeap   float64 // bytes that the last collections found alive
	goroutines float64
	series     float64 // lines of /metrics that are not comments
	stored     float64 // bytes in use in etcd's database
	files      bool    // stored is the size of etcd's file, as no metric tells
}

func (s *server) footprint(ctx context.Context) (footprint, error) {
	var f footprint
	for _, p := range s.measured {
		m, err := p.Memory()
		if err != nil {
			return f, err
		}
		f.memory += m
	}
	for _, config := range s.metrics {
		c, err := newClient(config)
		if err != nil {
			return f, err
		}
		b, err := c.call(ctx, http.MethodGet, "/metrics", "*/*", nil)
		c.close()
		if err != nil {
			return f, err
		}
		m, series := parseMetrics(b)
		percent := 100.0 // the default of Go
		if v, ok := m["go_gc_gogc_percent"]; ok && v > 0 {
			percent = v
		}
		f.liveHeap += m["go_memstats_next_gc_bytes"] * 100 / (100 + percent)
		f.goroutines += m["go_goroutines"]
		f.series += float64(series)
		f.stored += m["etcd_mvcc_db_total_size_in_use_in_bytes"]
	}
	if f.goroutines == 0 {
		return f, fmt.Errorf("%s: /metrics shows no go_goroutines", s.subject)
	}
	if f.stored > 0 {
		return f, nil
	}
	var err error
	f.files = true
	f.stored, err = databaseSize(s.dir)
	return f, err
}

// watchMemory looks at the memory of the measured processes until the function
// returned is called, which tells the most that it saw.
func (s *server) watchMemory(ctx context.Context) (highest func() (float64, error)) {
	ctx, cancel := context.WithCancel(ctx)
	var most float64
	var failed error
	done := make(chan struct{})
	go func() {
		defer close(done)
		for failed == nil && pause(ctx, 100*time.Millisecond) == nil {
			var sum float64
			for _, p := range s.measured {
				m, err := p.Memory()
				sum, failed = sum+m, errors.Join(failed, err)
			}
			most = max(most, sum)
		}
	}()
	return func() (float64, error) {
		cancel()
		<-done
		return most, failed
	}
}

// parseMetrics returns the metrics that have no labels, and the number of
// series.
func parseMetrics(b []byte) (map[string]float64, int) {
	values, series := map[string]float64{}, 0
	lines := bufio.NewScanner(bytes.NewReader(b))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := lines.Text()
		if line == "" || line[0] == '#' {
			continue
		}
		series++
		name, value, _ := strings.Cut(line, " ")
		if v, err := strconv.ParseFloat(value, 64); err == nil {
			values[name] = v
		}
	}
	return values, series
}

// databaseSize is the size of etcd's file, for a server that shows no metrics
// of etcd: it includes free pages.
func databaseSize(dir string) (float64, error) {
	var size float64
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, os.ErrNotExist) {
			return nil // a write-ahead log or snapshot that was just removed
		}
		if err != nil || !strings.HasSuffix(path, "/member/snap/db") {
			return err
		}
		info, err := d.Info()
		if err == nil {
			size += float64(info.Size())
		}
		return err
	})
	if err == nil && size == 0 {
		err = fmt.Errorf("no etcd database below %s, and no etcd metrics", dir)
	}
	return size, err
}
