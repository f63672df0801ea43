package kubeconfig

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
)

// TestEditsOfOthers checks that changes by other programs since the read are kept.
func TestEditsOfOthers(t *testing.T) {
	t.Parallel()
	s, file := opened(t)
	config, err := clientcmd.LoadFromFile(file)
	if err != nil {
		t.Fatal(err)
	}
	config.Contexts["theirs"] = &api.Context{Cluster: "root", AuthInfo: "kcp-admin"}
	config.AuthInfos["kcp-admin"].Token = "renewed"
	if err := clientcmd.WriteToFile(*config, file); err != nil {
		t.Fatal(err)
	}
	if err := s.Enter(t.Context(), s.Here.At("root:org")); err != nil {
		t.Fatal(err)
	}
	if config, err = clientcmd.LoadFromFile(file); err != nil || config.Contexts["theirs"] == nil || config.AuthInfos["kcp-admin"].Token != "renewed" || config.CurrentContext != CurrentContext {
		t.Errorf("got %+v", config)
	}
}

// TestLocked checks the behaviour while another program has the lock.
func TestLocked(t *testing.T) {
	t.Parallel()
	s, file := opened(t)
	held := file + ".lock"
	if err := os.WriteFile(held, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s.lockWithin = time.Millisecond
	_, err := s.CreateContext(t.Context(), "c", s.Here, Use)
	if want := "the kubeconfig is locked: " + held + " has existed for 1ms; if no other program is changing the kubeconfig, remove that file"; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	s.lockWithin = time.Hour
	if _, err := s.CreateContext(ctx, "c", s.Here, Use); !errors.Is(err, context.Canceled) {
		t.Errorf("interrupted: %v", err)
	}
	if _, err := os.Stat(held); err != nil {
		t.Errorf("the lock of another program is gone: %v", err)
	}
	time.AfterFunc(10*time.Millisecond, func() { _ = os.Remove(held) })
	if _, err := s.CreateContext(t.Context(), "c", s.Here, Use); err != nil {
		t.Errorf("after the other program was done: %v", err)
	}
}

// opened returns a session of a new kubeconfig whose current context is of the root, and its file.
func opened(t *testing.T) (s *Session, file string) {
	t.Helper()
	config := api.NewConfig()
	config.Clusters["root"] = &api.Cluster{Server: "https://kcp.example.com/clusters/root"}
	config.Contexts["root"] = &api.Context{Cluster: "root", AuthInfo: "kcp-admin"}
	config.AuthInfos["kcp-admin"] = &api.AuthInfo{Token: "secret"}
	config.CurrentContext = "root"
	file = filepath.Join(t.TempDir(), "admin.kubeconfig")
	if err := clientcmd.WriteToFile(*config, file); err != nil {
		t.Fatal(err)
	}
	flags := genericclioptions.NewConfigFlags(false)
	flags.KubeConfig = &file
	s, err := Open(flags)
	if err != nil {
		t.Fatal(err)
	}
	return s, file
}
