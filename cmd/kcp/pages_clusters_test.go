package main

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"sync"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/unforked/kcp/test/stock"
)

// createsCluster matches the command of kind that makes a physical cluster.
var createsCluster = regexp.MustCompile(`(?m)^kind create cluster --name (\S+) --kubeconfig \S+$`)

// kindOfPages plays kind and docker: clusters are control planes of their own, which the reader starts
// beforehand. To pause one, its API server is stopped.
const kindOfPages = `
kind() { [ "$1 $2 $3 $5" = 'create cluster --name --kubeconfig' ] || return 1; cp "$CLUSTERS/$4.kubeconfig" "$6"; }
docker() {
	case $1 in
	pause) kill -STOP $(cat "$CLUSTERS/${2%-control-plane}.pid") ;;
	unpause) kill -CONT $(cat "$CLUSTERS/${2%-control-plane}.pid") ;;
	*) return 1 ;;
	esac
}
`

// startClusters starts the physical clusters that a page makes with kind, and returns the environment of
// the functions that play it.
func (r *reader) startClusters(ctx context.Context, blocks []pageBlock) (env []string, err error) {
	dir := r.t.TempDir()
	for _, b := range blocks {
		if b.language != "sh" {
			continue
		}
		for _, match := range createsCluster.FindAllStringSubmatch(b.text, -1) {
			if err := r.startCluster(ctx, dir, match[1]); err != nil {
				return nil, err
			}
			env = []string{"CLUSTERS=" + dir}
		}
	}
	return env, nil
}

func (r *reader) startCluster(ctx context.Context, dir, name string) error {
	c := &stock.ControlPlane{Binary: kubeProgram(r.t), Dir: filepath.Join(dir, name)}
	if err := os.Mkdir(c.Dir, 0o700); err != nil {
		return err
	}
	r.t.Cleanup(c.Stop)
	if err := c.Start(ctx); err != nil {
		return err
	}
	if err := c.StartControllers(); err != nil {
		return err
	}
	stop, err := c.StartKubelet(ctx)
	if err != nil {
		return err
	}
	r.t.Cleanup(stop)
	running, end := context.WithCancel(context.Background())
	var pods sync.WaitGroup
	pods.Go(func() {
		if err := c.RunPods(running); err != nil {
			r.t.Error(err)
		}
	})
	r.t.Cleanup(func() { end(); pods.Wait() })
	of := c.Config(stock.UserToken)
	err = clientcmd.WriteToFile(clientcmdapi.Config{
		CurrentContext: name,
		Contexts:       map[string]*clientcmdapi.Context{name: {Cluster: name, AuthInfo: name}},
		Clusters:       map[string]*clientcmdapi.Cluster{name: {Server: of.Host, CertificateAuthority: of.CAFile}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{name: {Token: of.BearerToken}},
	}, filepath.Join(dir, name+".kubeconfig"))
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, name+".pid"), []byte(strconv.Itoa(c.API.PID())), 0o600)
}
