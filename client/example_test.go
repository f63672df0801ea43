package client_test

import (
	"context"
	"fmt"
	"log"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	tenancy "github.com/unforked/kcp/apis/tenancy/v1alpha1"
	"github.com/unforked/kcp/client"
)

// Make a workspace and write to it, with any configuration for the server.
func Example() {
	ctx, cfg := context.Background(), &rest.Config{Host: "https://localhost:6443"}

	workspaces, err := client.New[*tenancy.Workspace, *tenancy.WorkspaceList](cfg, "root", tenancy.GroupVersion.WithResource("workspaces"))
	if err != nil {
		log.Fatal(err)
	}
	team := &tenancy.Workspace{ObjectMeta: metav1.ObjectMeta{Name: "team"}}
	if _, err := workspaces.Create(ctx, team, metav1.CreateOptions{}); err != nil {
		log.Fatal(err)
	}

	maps, err := client.New[*corev1.ConfigMap, *corev1.ConfigMapList](cfg, "root:team", corev1.SchemeGroupVersion.WithResource("configmaps"))
	if err != nil {
		log.Fatal(err)
	}
	hello := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "hello"}}
	if _, err := maps.Namespace("default").Create(ctx, hello, metav1.CreateOptions{}); err != nil {
		log.Fatal(err)
	}
}

// Other clients need nothing but a configuration for the logical cluster.
func ExampleCluster() {
	cfg := &rest.Config{Host: "https://localhost:6443/clusters/root"}
	team := client.Cluster(cfg, "root:team")
	fmt.Println(team.Host)

	if _, err := dynamic.NewForConfig(team); err != nil {
		log.Fatal(err)
	}
	// Output: https://localhost:6443/clusters/root:team
}
