// Package build says what the running program was built from: the version and commit of
// this module, and the versions of the libraries that decide how it behaves.
package build

import (
	"cmp"
	"runtime"
	"runtime/debug"
)

// A release build sets these with the linker flag -X. Otherwise they are from the record of the
// Go toolchain, if it has them.
var (
	version = ""
	commit  = ""
	date    = ""
)

// Info describes a build.
type Info struct {
	// Version is the version of this module, "(devel)" if it was built from a checkout.
	Version string `json:"version"`
	// Commit is the git commit, empty if it is not known.
	Commit string `json:"commit,omitempty"`
	// Date is the time of the commit in RFC 3339, empty if it is not known.
	Date string `json:"date,omitempty"`
	// Modified is true if the checkout had changes that were not committed.
	Modified bool `json:"modified,omitempty"`

	GoVersion string `json:"goVersion"`
	Platform  string `json:"platform"`
	// Libraries maps module paths to versions.
	Libraries map[string]string `json:"libraries"`
}

// Libraries returns the modules that Read looks for, in the order to print them.
func Libraries() []string {
	return []string{"k8s.io/kubernetes", "k8s.io/apiserver", "k8s.io/client-go", "go.etcd.io/etcd/server/v3"}
}

// Read returns the description of the running program.
func Read() Info {
	i := Info{GoVersion: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH, Libraries: map[string]string{}}
	record, ok := debug.ReadBuildInfo()
	if !ok {
		record = &debug.BuildInfo{}
	}
	settings := map[string]string{}
	for _, s := range record.Settings {
		settings[s.Key] = s.Value
	}
	i.Version = cmp.Or(version, record.Main.Version, "(devel)")
	i.Commit = cmp.Or(commit, settings["vcs.revision"])
	i.Date = cmp.Or(date, settings["vcs.time"])
	i.Modified = commit == "" && settings["vcs.modified"] == "true"
	known := map[string]string{}
	for _, m := range record.Deps {
		known[m.Path] = m.Version
	}
	for _, path := range Libraries() {
		if v := known[path]; v != "" {
			i.Libraries[path] = v
		}
	}
	return i
}
