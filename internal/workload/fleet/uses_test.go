package fleet

import (
	"testing"

	"github.com/unforked/kcp"
)

// The targets of a tenant are bounded, however many workspaces it has, and those of others are not.
func TestUses(t *testing.T) {
	u := uses{of: map[kcp.ClusterName]*use{}}
	var last *use
	for range mostOfTenant {
		if last = u.take("a"); last == nil {
			t.Fatal("refused too early")
		}
	}
	if u.take("a") != nil {
		t.Errorf("a tenant has more than %d targets", mostOfTenant)
	}
	b := u.take("b")
	if b == nil || b.objects.Most != mostObjects {
		t.Error("another tenant is refused, or its objects have no bound")
	}
	u.give(last)
	if u.take("a") == nil {
		t.Error("what was given back is still counted")
	}
	u.give(b)
	if len(u.of) != 1 {
		t.Errorf("%d tenants, one has targets", len(u.of))
	}
	u.reset()
	if len(u.of) != 0 {
		t.Error("a reset forgets nothing")
	}
}
