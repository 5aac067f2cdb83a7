"""Environment blocks: many environments stepped together behind one array contract."""
