//go:build unix

package physical

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/unforked/kcp/client"
)

// helmWaits expects that Helm sees when a release runs. Its older way of waiting, which is that of Helm 3, needs the
// ReplicaSet of the present revision with its pods.
func (s *tenant) helmWaits(t *testing.T) {
	helm, err := filepath.Abs("../../bin/helm")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	kubeconfig, err := kubeconfigOf(client.Cluster(s.config, "root:"+s.name))
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"kubeconfig":                      string(kubeconfig),
		"chart/Chart.yaml":                "apiVersion: v2\nname: chart\nversion: 0.1.0\n",
		"chart/templates/deployment.yaml": "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: released}\nspec:\n  replicas: 2\n  selector: {matchLabels: {app: released}}\n  template:\n    metadata: {labels: {app: released}}\n    spec: {containers: [{name: web, image: \"nginx:{{ .Values.tag }}\"}]}\n",
	} {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, args := range [][]string{{"install", "released", "chart", "--set=tag=1"}, {"upgrade", "released", "chart", "--set=tag=2"}, {"rollback", "released"}} {
		cmd := exec.CommandContext(t.Context(), helm, append(args, "--wait=legacy", "--timeout=60s", "--kubeconfig=kubeconfig")...)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "HELM_CACHE_HOME="+dir, "HELM_CONFIG_HOME="+dir, "HELM_DATA_HOME="+dir)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("helm %s: %v\n%s", args[0], err, out)
		}
	}
	s.remove(t, "released")
}
