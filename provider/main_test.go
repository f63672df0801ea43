package provider_test

import (
	"os"
	"testing"

	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

func TestMain(m *testing.M) {
	log.SetLogger(klog.Background())
	os.Exit(m.Run())
}
