// Package auth knows who a user is in each logical cluster: the groups with a meaning, the scopes and
// warrants of a user, and the names that service accounts have elsewhere. Authentication and
// authorization, packages authn and authz, both rest on it.
package auth

import (
	"context"
	"time"
)

// Fresh waits until the data that decisions read includes all commits known so far. It
// reports whether it waited for newer data. A refused request is then decided again, so
// that the first request after a change is not refused on old data.
type Fresh func(ctx context.Context) bool

// Current confirms that the data that decisions read is recent enough to allow a request.
// It reports whether it waited for newer data: the request is then decided again. On an
// error the data may be too old, and the request must be refused.
type Current func(ctx context.Context) (waited bool, err error)

// Confirms reports whether an allowed request has to be decided again. On an error the
// request must be refused.
func (c Current) Confirms(ctx context.Context) (again bool, err error) {
	if c == nil {
		return false, nil
	}
	return c(ctx)
}

// CaughtUp waits until the data are current, and reports whether it waited. Nil never waits.
func (f Fresh) CaughtUp(ctx context.Context) bool { return f != nil && f(ctx) }

// WebhookTimeout is the timeout of webhooks that no file sets one for. Requests that wait
// for a webhook are not yet subject to the limits of their user, so they must be few.
const WebhookTimeout = 10 * time.Second

// FilePoll is the period of looking at a file for changes that were missed.
const FilePoll = time.Minute

// MaxToken limits the length of a token, in bytes. It is far above that of any token signed by this
// server.
const MaxToken = 16 << 10
