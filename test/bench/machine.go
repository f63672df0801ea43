package main

import (
	"debug/buildinfo"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/unforked/kcp/test/child"
)

// machine describes the hardware, the operating system and the binaries of a run. Figures
// cannot be compared without it.
func machine(dir string, binaries ...string) ([]string, error) {
	kernel, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return nil, err
	}
	meminfo, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return nil, err
	}
	var kb float64
	if _, err := fmt.Sscanf(string(meminfo), "MemTotal: %f kB", &kb); err != nil {
		return nil, fmt.Errorf("read /proc/meminfo: %w", err)
	}
	load, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return nil, err
	}
	sync, err := syncTime(dir)
	if err != nil {
		return nil, err
	}
	lines := []string{
		fmt.Sprintf("machine: %d cores, %.0f GiB, %s/%s, kernel %s; load %s when it began",
			runtime.NumCPU(), kb/(1<<20), runtime.GOOS, runtime.GOARCH, strings.TrimSpace(string(kernel)), strings.Fields(string(load))[0]),
		fmt.Sprintf("disk: %s, one fsync takes %s (median)%s", dir, sync.Round(time.Microsecond), memoryDisk(dir)),
		"client: " + runtime.Version(),
	}
	for _, file := range binaries {
		line, err := made(file)
		if err != nil {
			return nil, err
		}
		lines = append(lines, line)
	}
	return lines, nil
}

// made returns the build information that the Go toolchain recorded in a binary.
func made(file string) (string, error) {
	info, err := buildinfo.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("read how %s was built: %w", file, err)
	}
	line := fmt.Sprintf("%s: %s", filepath.Base(file), info.GoVersion)
	for _, d := range info.Deps {
		switch d.Path {
		case "k8s.io/kubernetes", "k8s.io/apiserver", "go.etcd.io/etcd/server/v3":
			line += fmt.Sprintf(", %s %s", d.Path, d.Version)
		}
	}
	for _, s := range info.Settings {
		if s.Key == "-race" && s.Value == "true" {
			line += " — built with the race detector, so its figures mean nothing"
		}
	}
	return line, nil
}

// syncTime returns the median time of a small write with fsync. Every write of both
// servers waits for one.
func syncTime(dir string) (time.Duration, error) {
	f, err := os.CreateTemp(dir, "fsync")
	if err != nil {
		return 0, err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	var times []time.Duration
	for range 21 {
		begin := time.Now()
		if _, err := f.WriteString("x"); err != nil {
			return 0, err
		}
		if err := f.Sync(); err != nil {
			return 0, err
		}
		times = append(times, time.Since(begin))
	}
	slices.Sort(times)
	return child.Percentile(times, 50), nil
}

// memoryDisk returns a warning if a directory is in memory, where fsync costs nothing.
func memoryDisk(dir string) string {
	const tmpfs = 0x01021994
	var s syscall.Statfs_t
	if err := syscall.Statfs(dir, &s); err == nil && int64(s.Type) == tmpfs {
		return " — tmpfs, choose a disk with -dir"
	}
	return ""
}
