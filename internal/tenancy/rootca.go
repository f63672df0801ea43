package tenancy

import "sync"

// A RootCA has the certificates, in PEM, with which clients in workspaces verify the server. They
// may change while the server runs.
type RootCA struct {
	mu        sync.Mutex
	text      string
	followers []func()
}

// NewRootCA returns a RootCA with these certificates.
func NewRootCA(text string) *RootCA { return &RootCA{text: text} }

// Text returns the certificates.
func (r *RootCA) Text() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.text
}

// Set sets the certificates. If they were others, it calls the followers and returns true.
func (r *RootCA) Set(text string) (changed bool) {
	r.mu.Lock()
	changed, r.text = r.text != text, text
	followers := r.followers
	r.mu.Unlock()
	if changed {
		for _, f := range followers {
			f()
		}
	}
	return changed
}

// Follow calls f after each change.
func (r *RootCA) Follow(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.followers = append(r.followers, f)
}
