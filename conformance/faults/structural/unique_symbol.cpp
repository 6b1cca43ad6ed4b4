// SPDX-License-Identifier: Apache-2.0
// A static inside an exported template: a unique symbol, which keeps the file mapped for good.
template <class T>
__attribute__((visibility("default"))) int& next_serial() {
  static int serial = 0;
  return serial;
}

template int& next_serial<int>();
