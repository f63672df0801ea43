// Command embed is a minimal program with a kcp server: it creates two logical clusters, and
// an object of the same name in each.
package main

import (
	"context"
	"fmt"
	"log"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/unforked/kcp"
)

func main() {
	if err := run(context.Background()); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context) error {
	srv := &kcp.Server{}
	if err := srv.Start(ctx); err != nil {
		return err
	}
	for _, team := range []string{"team-a", "team-b"} {
		cfg, err := srv.Cluster(ctx, team) // an ordinary *rest.Config
		if err != nil {
			return err
		}
		cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "hello"}, Data: map[string]string{"from": team}}
		made, err := kubernetes.NewForConfigOrDie(cfg).CoreV1().ConfigMaps("default").Create(ctx, cm, metav1.CreateOptions{})
		if err != nil {
			return err
		}
		fmt.Println(made.Annotations["kcp.io/cluster"], made.Data["from"])
	}
	return srv.Close()
}
