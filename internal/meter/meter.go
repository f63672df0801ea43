// Package meter lets several servers in one process count into the same metrics.
package meter

import (
	"errors"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/component-base/metrics"
)

// Register returns the metric that a registry serves under the name of m: m itself, or
// the one of that name and type which was registered before. The argument register is the
// method of that name of a Kubernetes registry, or legacyregistry.Register.
func Register[M metrics.Registerable](register func(metrics.Registerable) error, m M) (M, error) {
	err := register(m)
	if err == nil {
		return m, nil
	}
	var already prometheus.AlreadyRegisteredError
	if errors.As(err, &already) {
		if existing, ok := already.ExistingCollector.(M); ok {
			return existing, nil
		}
	}
	return m, fmt.Errorf("register metric %s: %w", m.FQName(), err)
}
