package answers

import (
	"reflect"
	"time"
)

// MemoryOf returns about how many bytes a value takes in memory, with what it points to. The value has no cycles.
func MemoryOf[T any](v *T) int64 {
	of := reflect.ValueOf(v).Elem()
	return int64(of.Type().Size()) + beyond(of)
}

// beyond returns how many bytes a value takes outside of itself.
func beyond(v reflect.Value) (n int64) {
	switch v.Kind() {
	case reflect.String:
		return allocated(int64(v.Len()))
	case reflect.Pointer, reflect.Interface:
		if v.IsNil() {
			return 0
		}
		return allocated(int64(v.Elem().Type().Size())) + beyond(v.Elem())
	case reflect.Slice:
		if v.Cap() == 0 {
			return 0
		}
		n = allocated(int64(v.Cap()) * int64(v.Type().Elem().Size()))
		if v.Type().Elem().Kind() == reflect.Uint8 {
			return n
		}
		for i := range v.Len() {
			n += beyond(v.Index(i))
		}
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() { // all have the same time zones
			return 0
		}
		for i := range v.NumField() {
			n += beyond(v.Field(i))
		}
	case reflect.Map:
		if v.IsNil() {
			return 0
		}
		t := v.Type()
		n = 48 + int64(max(8, 2*v.Len()))*int64(t.Key().Size()+t.Elem().Size()+1)
		for all := v.MapRange(); all.Next(); {
			n += beyond(all.Key()) + beyond(all.Value())
		}
	}
	return n
}

// allocated returns how many bytes are allocated for some.
func allocated(n int64) int64 { return (n + 15) &^ 15 }
