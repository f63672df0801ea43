package push

import (
	"errors"
	"testing"

	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/internal/workload/physical"
)

// One probe that says that the cluster lives outweighs the others; one that says that it is down is not
// enough; no answer says nothing.
func TestTold(t *testing.T) {
	for _, c := range []struct {
		signs []sign
		want  string
	}{
		{[]sign{unknown}, workload.Unreachable}, {[]sign{unknown, unknown, unknown}, workload.Unreachable}, {[]sign{down}, workload.Unreachable},
		{[]sign{down, unknown, unknown}, workload.Unreachable}, {[]sign{down, unknown, down}, workload.DownByProbes}, {[]sign{down, down, up}, workload.AgentLost}, {[]sign{up}, workload.AgentLost},
	} {
		p := (*physical.Problem)(nil)
		if err := told(errors.New("late"), c.signs, make([]string, len(c.signs))); !errors.As(err, &p) || p.Reason != c.want {
			t.Errorf("%v: %v, want %s", c.signs, err, c.want)
		}
	}
}
