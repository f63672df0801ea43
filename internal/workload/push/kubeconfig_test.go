package push

import (
	"net/http"
	"strings"
	"testing"

	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// To read a huge client key would take a processor for minutes.
func TestHugeClientKeys(t *testing.T) {
	k := &clientcmdapi.Config{
		CurrentContext: "it", Contexts: map[string]*clientcmdapi.Context{"it": {Cluster: "it", AuthInfo: "it"}},
		Clusters:  map[string]*clientcmdapi.Cluster{"it": {Server: "https://192.0.2.1"}},
		AuthInfos: map[string]*clientcmdapi.AuthInfo{"it": {ClientCertificateData: []byte("x"), ClientKeyData: []byte(strings.Repeat("x", mostKey+1))}},
	}
	_, err := configOf(k, func([]byte, certificate) (http.RoundTripper, error) { return http.DefaultTransport, nil })
	if err == nil || !strings.Contains(err.Error(), "more than 8192 bytes") {
		t.Errorf("got %v", err)
	}
}
