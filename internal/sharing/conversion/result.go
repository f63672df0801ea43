package conversion

import (
	"encoding/base64"
	"fmt"
	"math"
	"time"

	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
	"k8s.io/apimachinery/pkg/runtime"
)

// copied returns a copy of a JSON value.
func (b *budget) copied(in any) (any, error) {
	if err := b.spend(in); err != nil {
		return nil, err
	}
	return runtime.DeepCopyJSONValue(in), nil
}

// spend counts the size of a JSON value.
func (b *budget) spend(in any) error {
	if b.bytes -= 8; b.bytes < 0 { // each value takes some bytes
		return errBudget
	}
	switch in := in.(type) {
	case string:
		b.bytes -= len(in)
	case map[string]any:
		for k, v := range in {
			b.bytes -= len(k)
			if err := b.spend(v); err != nil {
				return err
			}
		}
	case []any:
		for _, v := range in {
			if err := b.spend(v); err != nil {
				return err
			}
		}
	}
	if b.bytes < 0 {
		return errBudget
	}
	return nil
}

// native returns the JSON value of a result, and whether it has one: an optional may be empty.
// Results share parts, which become copies. So their size can be far larger than their cost.
func (b *budget) native(in ref.Val) (any, bool, error) {
	if optional, ok := in.(*types.Optional); ok {
		if !optional.HasValue() {
			return nil, false, nil
		}
		in = optional.GetValue()
	}
	out, err := b.json(in)
	return out, true, err
}

func (b *budget) json(in ref.Val) (any, error) {
	switch in := in.(type) {
	case types.Null:
		return nil, b.spend(nil)
	case types.Bool:
		return bool(in), b.spend(nil)
	case types.Int:
		return int64(in), b.spend(nil)
	case types.Uint:
		if in > math.MaxInt64 {
			return nil, fmt.Errorf("%d is too large", uint64(in))
		}
		return int64(in), b.spend(nil)
	case types.Double:
		if math.IsNaN(float64(in)) || math.IsInf(float64(in), 0) {
			return nil, fmt.Errorf("%v is no JSON number", float64(in))
		}
		return float64(in), b.spend(nil)
	case types.String:
		return string(in), b.spend(string(in))
	case types.Bytes:
		text := base64.StdEncoding.EncodeToString(in)
		return text, b.spend(text)
	case types.Timestamp:
		return in.Format(time.RFC3339Nano), b.spend(nil)
	case types.Duration:
		return in.Duration.String(), b.spend(nil)
	}
	switch whole := in.Value().(type) { // a part of the object as it is
	case map[string]any, []any:
		return b.copied(whole)
	}
	switch in := in.(type) {
	case traits.Mapper:
		return b.object(in)
	case traits.Lister:
		return b.list(in)
	case *types.Err:
		return nil, in
	}
	return nil, fmt.Errorf("a result of type %s is no value of a field", in.Type().TypeName())
}

func (b *budget) object(in traits.Mapper) (any, error) {
	out := map[string]any{}
	for it := in.Iterator(); it.HasNext() == types.True; {
		key := it.Next()
		name, ok := key.(types.String)
		if !ok {
			return nil, fmt.Errorf("a key of type %s is no name of a field; use strings", key.Type().TypeName())
		}
		value, err := b.json(in.Get(key))
		if err != nil {
			return nil, err
		}
		if err := b.spend(string(name)); err != nil {
			return nil, err
		}
		out[string(name)] = value
	}
	return out, nil
}

func (b *budget) list(in traits.Lister) (any, error) {
	out := []any{}
	for it := in.Iterator(); it.HasNext() == types.True; {
		value, err := b.json(it.Next())
		if err != nil {
			return nil, err
		}
		out = append(out, value)
	}
	return out, nil
}
