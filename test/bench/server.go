package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/client-go/rest"

	"github.com/unforked/kcp/test/child"
	"github.com/unforked/kcp/test/stock"
)

// subject is a kind of server to measure.
type subject interface {
	name() string
	// start returns a ready server. Only with controllers it can create tenants.
	start(ctx context.Context, dir string, controllers bool) (*server, error)
}

// tenant is a workspace of kcp, or a namespace of a stock server.
type tenant struct {
	configMaps string // URL path of the config maps in its (default) namespace
	all        string // URL path that lists the config maps of the whole tenant
}

// server is a running server. The measured processes are the API server and etcd, without
// the stock controller manager.
type server struct {
	subject string
	dir     string
	took    time.Duration // from exec to ready

	measured []*stock.Process // API server and etcd
	beside   []*stock.Process // controller manager
	closers  []func()         // called in reverse order before the processes stop

	user    *rest.Config   // an ordinary user to whom RBAC grants everything
	metrics []*rest.Config // where each measured process shows /metrics

	// newTenant returns when a config map can be written in the tenant.
	newTenant func(ctx context.Context, c *client, name string) (tenant, error)
}

// stop ends every process, in reverse order of their start, and waits for them.
func (s *server) stop() {
	for i := range s.closers {
		s.closers[len(s.closers)-1-i]()
	}
	all := append(append([]*stock.Process{}, s.measured...), s.beside...)
	for i := range all {
		all[len(all)-1-i].Stop()
	}
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

// footprint is the memory and the storage that the measured processes use.
type footprint struct {
	memory     float64 // anonymous resident bytes
	liveHeap   float64 // live heap bytes after the last garbage collection
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
		c, err := child.NewClient(config)
		if err != nil {
			return f, err
		}
		b, err := c.Call(ctx, http.MethodGet, "/metrics", "*/*", nil)
		c.Close()
		if err != nil {
			return f, err
		}
		m, series := child.ParseMetrics(b)
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

// watchMemory samples the memory of the measured processes. The returned function stops
// the sampling and returns the maximum.
func (s *server) watchMemory(ctx context.Context) (highest func() (float64, error)) {
	ctx, cancel := context.WithCancel(ctx)
	var most float64
	var failed error
	done := make(chan struct{})
	go func() {
		defer close(done)
		for failed == nil && child.Pause(ctx, 100*time.Millisecond) == nil {
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

// databaseSize returns the size of etcd's file, including free pages. It is used for a
// server without metrics of etcd.
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
