package garbage

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/unforked/kcp/internal/storage/values"
)

func TestDecide(t *testing.T) {
	t.Parallel()
	const background, foreground, orphan = metav1.DeletePropagationBackground, metav1.DeletePropagationForeground, metav1.DeletePropagationOrphan
	uids := func(u ...types.UID) []types.UID { return u }
	for name, c := range map[string]struct {
		standings  []standing
		dependents int
		finalizers []string
		want       decision
	}{
		"a solid owner keeps it":                         {standings: []standing{solid}},
		"and takes it from those that are gone":          {standings: []standing{dangling, solid}, want: decision{release: uids("0")}},
		"and from those that wait for it":                {standings: []standing{solid, waiting}, want: decision{release: uids("1")}},
		"whatever depends on it":                         {standings: []standing{solid, waiting}, dependents: 3, want: decision{release: uids("1")}},
		"an owner that leaves it behind keeps it":        {standings: []standing{leaving}, want: decision{release: uids("0")}},
		"also from those that are gone":                  {standings: []standing{leaving, dangling}, want: decision{release: uids("0", "1")}},
		"no owner is left":                               {standings: []standing{dangling, dangling}, want: decision{remove: background}},
		"nor by its dependents":                          {standings: []standing{dangling}, dependents: 1, want: decision{remove: background}},
		"its finalizer to orphan its dependents counts":  {standings: []standing{dangling}, finalizers: []string{"orphan"}, want: decision{remove: orphan}},
		"as does that to wait for them":                  {standings: []standing{dangling}, finalizers: []string{"foregroundDeletion"}, want: decision{remove: foreground}},
		"a waiting owner ends it":                        {standings: []standing{waiting, dangling}, want: decision{remove: background}},
		"after its dependents":                           {standings: []standing{waiting}, dependents: 1, want: decision{remove: foreground, mayBeCircular: true}},
		"which are not left behind then, as in upstream": {standings: []standing{waiting}, dependents: 1, finalizers: []string{"orphan"}, want: decision{remove: foreground, mayBeCircular: true}},
	} {
		o := values.Metadata{Finalizers: c.finalizers}
		for i := range c.standings {
			o.Owners = append(o.Owners, metav1.OwnerReference{UID: types.UID(rune('0' + i))})
		}
		got := decide(o, c.standings, c.dependents)
		if diff := cmp.Diff(c.want, got, cmp.AllowUnexported(decision{})); diff != "" {
			t.Errorf("%s: -want +got:\n%s", name, diff)
		}
	}
}
