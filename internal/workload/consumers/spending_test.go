package consumers

import (
	"fmt"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/unforked/kcp"
)

// Physical clusters that change what they report all the time leave half of the writes to the tenant, and all
// writes to other tenants.
func TestReportsLeaveWrites(t *testing.T) {
	var s spendings
	now := time.Now()
	written := 0
	for s.spend("shop", now, 64<<10) == nil {
		written += 64 << 10
	}
	if written != reportBurst {
		t.Errorf("%d bytes are written at once", written)
	}
	if err := s.spend("shop", now, 64<<10); !apierrors.IsTooManyRequests(err) {
		t.Errorf("got %v", err)
	}
	if err := s.spend("other", now, 64<<10); err != nil {
		t.Errorf("another tenant: %v", err)
	}
	if err := s.spend("shop", now.Add(time.Second), reportRate); err != nil {
		t.Errorf("a second later: %v", err)
	}
	for i := range 2 * swept {
		if err := s.spend(kcp.ClusterName(fmt.Sprint(i)), now.Add(time.Duration(i)*time.Minute), 1); err != nil {
			t.Fatal(err)
		}
	}
	if len(s.of) > swept {
		t.Errorf("%d tenants are kept", len(s.of))
	}
}
