package upstream

import (
	"regexp"
	"sync"
	"sync/atomic"
	_ "unsafe" // for go:linkname
)

// compiled is the cache of compiled patterns of the library's validation, and compiledMu guards
// its changes. The library never evicts entries, so patterns of tenants would fill the memory
// of the process. It exports no way to clear the cache.
//
// At the next minor version: look at k8s.io/kube-openapi/pkg/validation/validate/rexp.go, the
// names and types of its variables. If the cache has a limit of its own, delete this file.
//
//go:linkname compiled k8s.io/kube-openapi/pkg/validation/validate.reDict
var compiled atomic.Value

//go:linkname compiledMu k8s.io/kube-openapi/pkg/validation/validate.cacheMutex
var compiledMu *sync.Mutex

// maxPatterns is the maximum number of patterns that the library keeps compiled.
const maxPatterns = 1000

// ForgetPatterns clears the library's cache of compiled patterns if it has too many entries. The
// library compiles patterns again when it needs them.
func ForgetPatterns() { forgetPatterns(maxPatterns) }

// forgetPatterns clears the cache if it has more than limit entries.
func forgetPatterns(limit int) {
	if patterns() <= limit {
		return
	}
	compiledMu.Lock()
	defer compiledMu.Unlock()
	compiled.Store(map[string]*regexp.Regexp{})
}

// patterns returns the number of entries in the cache.
func patterns() int {
	kept, _ := compiled.Load().(map[string]*regexp.Regexp)
	return len(kept)
}
