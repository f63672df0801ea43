package server_test

import (
	"os"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/version"
)

// Clients compare their version with that of the server.
func TestVersion(t *testing.T) {
	info, err := newTenant(t).kube.Discovery().ServerVersion()
	if err != nil {
		t.Fatal(err)
	}
	v, err := version.ParseSemantic(info.GitVersion)
	if err != nil {
		t.Fatal(err)
	}
	gomod, err := os.ReadFile("../../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	if libraries := "k8s.io/kubernetes v" + strings.TrimSuffix(v.String(), "+kcp") + "\n"; !strings.Contains(string(gomod), libraries) {
		t.Errorf("version %s, but go.mod has no %q", info.GitVersion, libraries)
	}
	if info.Major != "1" || info.Minor != "36" || info.GitCommit != "" {
		t.Errorf("%+v", info)
	}
}
