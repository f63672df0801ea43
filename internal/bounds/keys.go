package bounds

import (
	"crypto/rsa"
	"fmt"
)

// maxModulus limits the RSA keys that clients choose. The time of a verification grows with the square of
// the modulus, and nothing can end it: a key that fits into an object would take a processor for hours. Go's
// TLS has the same limit for the certificates of peers.
const maxModulus = 8192 // bits

// PublicKey returns an error for a public key that takes too long to use.
func PublicKey(key any) error {
	if k, ok := key.(*rsa.PublicKey); ok && k.N.BitLen() > maxModulus {
		return fmt.Errorf("the RSA key has %d bits, and the limit is %d", k.N.BitLen(), maxModulus)
	}
	return nil
}
